"""Files of prompts, answered once each."""
