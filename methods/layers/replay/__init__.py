"""Data of previous tasks: replay buffers, mixup, queues, momentum encoders and class statistics."""
