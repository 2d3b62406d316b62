"""The main job on real engines, by hand: `bin/tryout`."""
