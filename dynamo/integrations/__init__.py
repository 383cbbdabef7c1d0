"""This compiler in other people's training loops, where they would call torch.compile."""
