"""OpenAI's requests and answers, without HTTP."""
