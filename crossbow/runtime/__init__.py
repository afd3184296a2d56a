"""When and where: devices, streams, learners, the tick, the engine, training runs, monitors."""
