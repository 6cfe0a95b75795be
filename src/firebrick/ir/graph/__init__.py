"""Graphs of FX nodes: normal forms of calls, nested graphs, equal layers."""
