"""Model repositories for servers: packed from output folders, and checked."""
