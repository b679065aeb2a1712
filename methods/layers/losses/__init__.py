"""Loss functions of methods: contrastive, distillation, matching and dual softmax, and simplex prototypes."""
