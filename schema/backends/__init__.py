"""What each backend supports, as one list that both of its halves read.

Ahead of time a backend chooses nodes by its list; at run time it refuses blocks with
anything else. Nothing here needs a backend's library, or torch.
"""
