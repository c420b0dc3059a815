"""Where the bytes of images come from: `opening` is the one door, behind it are the `tertium.data.kinds`."""
