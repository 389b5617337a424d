from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("chatapp", "0002_thinking"),
    ]

    operations = [
        migrations.AddField(
            model_name="generation",
            name="num_reencoded",
            field=models.PositiveIntegerField(default=0, verbose_name="replies encoded again"),
        ),
        migrations.AlterField(
            model_name="generation",
            name="prefix_break",
            field=models.CharField(
                blank=True,
                choices=[
                    ("thinking_stripped", "Thinking was taken out"),
                    ("model_changed", "Another model answered before"),
                ],
                max_length=32,
                verbose_name="prefix ended by",
            ),
        ),
    ]
