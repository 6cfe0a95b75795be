"""One class a kind of value that the symbolic interpreter can hold."""
