"""All that a plug-in author imports."""
