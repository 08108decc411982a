"""What people read: tables and bars in the terminal."""
