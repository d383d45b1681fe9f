"""Models of several parts: each part is an output folder, and the whole is judged end to end."""
