"""What all trackers and rules stand on: `Var`, the machine's protocols, rule table, effects."""
