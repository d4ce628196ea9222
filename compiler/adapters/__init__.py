"""Adapters: slots for them in a compiled model, and PEFT's folders read for slots."""
