"""The wire contract, its codec, the client and the command line."""
