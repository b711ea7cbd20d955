"""What the machine gives the CPU backend at most: memory bandwidth, rate of products, and the
ceilings that follow for a model.  Not here: workloads, which `radixd bench` plays."""
