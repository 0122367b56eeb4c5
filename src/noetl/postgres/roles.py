"""The role that servers work as. A database of yours may have it too."""

APP_ROLE = "noetl_app"  # appends events, and may not change or delete them
