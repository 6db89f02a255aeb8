"""What must hold at any time, in symbols that any mistake changes."""
