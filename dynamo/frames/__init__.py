"""Which frames are traced: those that are left alone, those that need a caller, those that pay."""
