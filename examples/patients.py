"""Write a table of patients."""

import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.datasets import load_diabetes

data = load_diabetes(scaled=False)
columns = dict(zip(data.feature_names, data.data.T, strict=True))
table = pa.table(
    {
        "patient": [f"patient-{i}" for i in range(len(data.target))],
        "age": columns["age"].astype("int16"),
        "sex": ["f" if sex == 1 else "m" for sex in columns["sex"]],
        "bmi": columns["bmi"],
        "pressure": columns["bp"],
        "glucose": columns["s6"],
        "lipids": columns["s5"],
        "progression": data.target,
        "obese": columns["bmi"] >= 30,
        "hypertensive": columns["bp"] >= 100,
        "note": [
            f"bmi {b:.0f}, pressure {p:.0f}"
            for b, p in zip(columns["bmi"], columns["bp"], strict=True)
        ],
    }
)
pq.write_table(table, "patients.parquet")
inputs = ["patient", "age", "sex", "bmi", "pressure", "glucose", "lipids", "note"]
pq.write_table(table.select(inputs).slice(0, 5), "new-patients.parquet")
