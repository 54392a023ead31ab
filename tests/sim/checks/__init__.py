"""What must hold in a simulated story: checkers, watchers, and what may be said, held and left."""
