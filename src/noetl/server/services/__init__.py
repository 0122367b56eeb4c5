"""What the API does, without HTTP: one class per subject. Every function takes the `Identity` that asks, and every query its
tenant. Used by the routes, and by commands that work without a server process: these load the subject they need."""
