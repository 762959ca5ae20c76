"""Hops: what rooms need of one another, from process to process over one stream a peer."""
