"""Operations that only captured graphs hold, and what is known of operators."""
