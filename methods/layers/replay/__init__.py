"""Keep data of former tasks: replay buffers, mixup, queues, momentum encoders, class statistics."""
