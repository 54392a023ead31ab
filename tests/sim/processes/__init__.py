"""The simulated processes: nodes, managers, partition servers, clients."""
