"""Loss functions of methods: contrastive, distillation, matching, dual softmax, simplex prototypes."""
