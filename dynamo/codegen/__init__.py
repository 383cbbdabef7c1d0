"""New bytecode out of a trace: call the graph, replay effects, rebuild values, go on."""
