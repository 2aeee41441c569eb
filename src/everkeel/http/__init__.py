"""HTTP: clients that retry, wait and give up as they should, and servers that say when to come back."""
