"""How ./dev reads its command line and its environment, on a copy of it with no build beside it."""
