"""Where negatives come from: lists mined offline, draws, stores."""
