"""The teaching figures: the table behind each, and the drawing made of it."""
