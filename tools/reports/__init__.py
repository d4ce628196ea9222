"""What `kvc dump` can say about a bundle, one question a file.

Each file has a frozen report, a function that works it out from the decoded program,
and a function that lays it out as lines. The JSON is the report's fields.
"""
