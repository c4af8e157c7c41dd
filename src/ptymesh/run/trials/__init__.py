"""Short runs on some views, by which two recipes are compared: with a remedy and without, a lens and its twin."""
