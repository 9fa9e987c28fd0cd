"""Divides a graph among ranks: strategies of nodes, their costs, and the graph that ranks run."""
