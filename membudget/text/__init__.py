"""What is printed: made safe, made to fit."""
