"""Methods that the papers are compared with: VSE-C, NegCLIP, CFM, LSEH, denotation graphs."""
