"""OpenAI's API over HTTP.

connections --protocol, guards--> endpoints --jobs--> scheduler
  --updates, streams--> server-sent events
"""
