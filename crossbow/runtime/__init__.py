"""The execution of training: devices, streams, learners, the tick, the engine, training runs, monitors."""
