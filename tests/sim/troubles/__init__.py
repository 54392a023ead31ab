"""What befalls a simulated cluster: kinds of trouble, ambushes, and which story has which."""
