"""Who calls, and what they may: tokens and certificates, the policy, and the gate that all calls pass."""
