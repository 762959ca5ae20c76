"""The only place that encodes or decodes protobuf; strict both ways."""
