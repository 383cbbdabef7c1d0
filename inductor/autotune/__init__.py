"""What chooses among candidates, by measurement or estimate."""
