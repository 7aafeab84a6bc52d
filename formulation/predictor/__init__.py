"""What a device takes for its part of a layer: by the data sheet, by a roofline, or by measured curves."""
