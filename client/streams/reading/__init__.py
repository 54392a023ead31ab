"""Reading a stream: extent by extent, ahead of the consumer, from the replica that replies best."""
