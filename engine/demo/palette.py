"""The colours of the synthetic scenes, as 8-bit RGB, far enough apart to be named."""

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (220, 30, 35),
    "orange": (250, 140, 20),
    "yellow": (240, 215, 10),
    "green": (20, 140, 50),
    "blue": (30, 70, 215),
    "purple": (140, 40, 165),
    "brown": (115, 70, 30),
    "black": (20, 20, 22),
}
BACKGROUNDS: dict[str, tuple[int, int, int]] = {
    "white": (250, 250, 250),
    "grey": (185, 185, 187),
    "light blue": (180, 215, 248),
    "light green": (190, 238, 190),
    "pink": (252, 196, 212),
}
