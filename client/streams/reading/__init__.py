"""Reading a stream: extent by extent, ahead of the caller, from whichever replica replies well."""
