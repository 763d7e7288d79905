"""Audio devices behind one interface, driven through the native core."""
