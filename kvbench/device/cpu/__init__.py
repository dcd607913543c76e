"""The cpu device: worker threads or the schedule explorer over two arenas of NumPy memory."""
